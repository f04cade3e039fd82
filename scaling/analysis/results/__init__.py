"""What the analysis found: frozen results, one class per object of analysis.json.

Field names are the JSON keys (a trailing underscore is dropped). A measured number is a
`Measured`, or the whole object is None: never 0 for "unknown".
"""

from scaling.analysis.measured import LAUNCHES_MIN, Measured
from scaling.analysis.results.cases import BatchTry, Inference, LargestBatch, Latency, Training
from scaling.analysis.results.comparison import (
    CaseComparison,
    Comparison,
    CostComparison,
    PointComparison,
    SettingDifference,
    Split,
)
from scaling.analysis.results.fabric import (
    CurvePoint,
    Fabric,
    Fits,
    KarpFlatt,
    Level,
    NcclChoice,
    NcclGroup,
    NcclLog,
    Usl,
)
from scaling.analysis.results.hosts import Host
from scaling.analysis.results.point import (
    Arms,
    Bucket,
    Clocks,
    Comm,
    Cost,
    Loader,
    Loss,
    Memory,
    Overhead,
    Parts,
    Point,
    Straggler,
    Throttled,
)
from scaling.analysis.results.prediction import Backtest, PredictedPoint, Prediction
from scaling.analysis.results.roofline import CeilingResult, OperatorResult, RooflineResult
from scaling.analysis.results.run import Analysis, MemoryGrowth, Quality, RunInfo, TrialOutcome
from scaling.analysis.results.timeline import Span, StepHistory, Timeline
from scaling.analysis.results.verdicts import Remedy, SelfTest, SelfTestCase, Verdict, Verification

SCHEMA = 1

__all__ = [
    "LAUNCHES_MIN",
    "SCHEMA",
    "Analysis",
    "Arms",
    "Backtest",
    "BatchTry",
    "Bucket",
    "CaseComparison",
    "CeilingResult",
    "Clocks",
    "Comm",
    "Comparison",
    "Cost",
    "CostComparison",
    "CurvePoint",
    "Fabric",
    "Fits",
    "Host",
    "Inference",
    "KarpFlatt",
    "LargestBatch",
    "Latency",
    "Level",
    "Loader",
    "Loss",
    "Measured",
    "Memory",
    "MemoryGrowth",
    "NcclChoice",
    "NcclGroup",
    "NcclLog",
    "OperatorResult",
    "Overhead",
    "Parts",
    "Point",
    "PointComparison",
    "PredictedPoint",
    "Prediction",
    "Quality",
    "Remedy",
    "RooflineResult",
    "RunInfo",
    "SelfTest",
    "SelfTestCase",
    "SettingDifference",
    "Span",
    "Split",
    "StepHistory",
    "Straggler",
    "Throttled",
    "Timeline",
    "Training",
    "TrialOutcome",
    "Usl",
    "Verdict",
    "Verification",
]
