"""Whether the right change is selected: pools of candidates made by machine, judged, ranked with scripted opinion."""
