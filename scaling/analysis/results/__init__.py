"""The results of the analysis: frozen dataclasses, one for each object of analysis.json.

Field names are the JSON keys (a trailing underscore is dropped). A measured number is a
`Measured`, or the whole object is None: never 0 for "unknown".
Other rooms import results from here.
"""

from scaling.analysis.results.cases import InferenceCase, LargestBatch, Latency, TrainingCase
from scaling.analysis.results.comparison import (
    Allocation,
    AllocationRates,
    Allocations,
    CaseComparison,
    Comparison,
    CostComparison,
    PointComparison,
    SettingDifference,
    Split,
    Sweep,
    SweepBest,
    SweepRow,
)
from scaling.analysis.results.fabric import (
    Cliff,
    CurvePoint,
    Fabric,
    FabricLevel,
    NcclChoice,
    NcclGroup,
    NcclLog,
)
from scaling.analysis.results.machine import HostSpeed, HostSteps, OwnStep, RankSpread
from scaling.analysis.results.measured import LAUNCHES_MIN, AtSize, Measured, at, ratio_of
from scaling.analysis.results.point import (
    ArmTimes,
    Bucket,
    Collective,
    Comm,
    DataLoading,
    Degrees,
    DeviceClocks,
    Loss,
    LossOfKind,
    Overhead,
    PeakMemory,
    Point,
    SampleCost,
    StepParts,
    Straggler,
    Throttled,
    TokenBalance,
)
from scaling.analysis.results.prediction import (
    Assumption,
    Backtest,
    PredictedPoint,
    Prediction,
)
from scaling.analysis.results.roofline import (
    CeilingResult,
    RooflineResult,
    SlowKernel,
    StepPart,
    StepTime,
)
from scaling.analysis.results.run import Analysis, Details, MemoryGrowth, Quality, RankInDetails, RunInfo
from scaling.analysis.results.strategies import StrategyAtSize, StrategyResult
from scaling.analysis.results.study import Study, StudyRun
from scaling.analysis.results.timeline import Drawn, Span, StepHistory, Timeline
from scaling.analysis.results.verdicts import NO_CAUSE, Remedy, SelfTest, SelfTestCase, Verdict, Verification
from scaling.records.status import TrialStatus

SCHEMA = 2

__all__ = [
    "LAUNCHES_MIN",
    "NO_CAUSE",
    "SCHEMA",
    "Allocation",
    "AllocationRates",
    "Allocations",
    "Analysis",
    "ArmTimes",
    "Assumption",
    "AtSize",
    "Backtest",
    "Bucket",
    "CaseComparison",
    "CeilingResult",
    "Cliff",
    "Collective",
    "Comm",
    "Comparison",
    "CostComparison",
    "CurvePoint",
    "DataLoading",
    "Degrees",
    "Details",
    "DeviceClocks",
    "Drawn",
    "Fabric",
    "FabricLevel",
    "HostSpeed",
    "HostSteps",
    "InferenceCase",
    "LargestBatch",
    "Latency",
    "Loss",
    "LossOfKind",
    "Measured",
    "MemoryGrowth",
    "NcclChoice",
    "NcclGroup",
    "NcclLog",
    "Overhead",
    "OwnStep",
    "PeakMemory",
    "Point",
    "PointComparison",
    "PredictedPoint",
    "Prediction",
    "Quality",
    "RankInDetails",
    "RankSpread",
    "Remedy",
    "RooflineResult",
    "RunInfo",
    "SampleCost",
    "SelfTest",
    "SelfTestCase",
    "SettingDifference",
    "SlowKernel",
    "Span",
    "Split",
    "StepHistory",
    "StepPart",
    "StepParts",
    "StepTime",
    "Straggler",
    "StrategyAtSize",
    "StrategyResult",
    "Study",
    "StudyRun",
    "Sweep",
    "SweepBest",
    "SweepRow",
    "Throttled",
    "Timeline",
    "TokenBalance",
    "TrainingCase",
    "TrialStatus",
    "Verdict",
    "Verification",
    "at",
    "ratio_of",
]
