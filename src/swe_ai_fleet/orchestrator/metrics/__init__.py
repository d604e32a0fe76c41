"""Figures over time, folded from the event log: counts, sums, and latencies as sketches of bounded error."""

from swe_ai_fleet.orchestrator.metrics.figures import RELATIVE_ERROR, Figures, ModelFigures, Sketch, ToolFigures
from swe_ai_fleet.orchestrator.metrics.meter import Measurement, Meter, Point

__all__ = ["RELATIVE_ERROR", "Figures", "Measurement", "Meter", "ModelFigures", "Point", "Sketch", "ToolFigures"]
