"""Figures over time, folded from the event log: counts, sums, and latencies as sketches of bounded error."""

from swe_ai_fleet.orchestrator.metrics.figures import Figures, ModelFigures, ToolFigures
from swe_ai_fleet.orchestrator.metrics.meter import Measurement, Meter, Point
from swe_ai_fleet.orchestrator.metrics.sketch import RELATIVE_ERROR, Sketch

__all__ = ["RELATIVE_ERROR", "Figures", "Measurement", "Meter", "ModelFigures", "Point", "Sketch", "ToolFigures"]
