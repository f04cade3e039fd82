"""The results of the analysis: frozen dataclasses, one for each object of analysis.json.

Field names are the JSON keys (a trailing underscore is dropped). A measured number is a
`Measured`, or the whole object is None: never 0 for "unknown".
Other rooms import results from here.
"""

from scaling.analysis.results.comparison import (
    Allocation,
    AllocationRates,
    Allocations,
    Assumption,
    Backtest,
    CaseComparison,
    Comparison,
    CostComparison,
    PointComparison,
    PredictedPoint,
    Prediction,
    SettingDifference,
    Split,
    Sweep,
    SweepBest,
    SweepRow,
)
from scaling.analysis.results.lost_time import Drift, Goodput, Pause, Stall
from scaling.analysis.results.machine import (
    CeilingResult,
    Cliff,
    CurvePoint,
    Fabric,
    FabricLevel,
    HostSpeed,
    HostSteps,
    NcclChoice,
    NcclGroup,
    NcclLog,
    OwnStep,
    RankSpread,
    RooflineResult,
    SlowKernel,
    StepPart,
    StepTime,
)
from scaling.analysis.results.measured import LAUNCHES_MIN, Measured, at, ratio_of
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
    NamedPhase,
    Overhead,
    PeakMemory,
    Point,
    SampleCost,
    StepParts,
    Straggler,
    Throttled,
    TokenBalance,
)
from scaling.analysis.results.run import Analysis, Details, MemoryGrowth, Quality, RankInDetails, RunInfo
from scaling.analysis.results.study import (
    InferenceCase,
    LargestBatch,
    Latency,
    StrategyAtSize,
    StrategyResult,
    Study,
    StudyRun,
    TrainingCase,
)
from scaling.analysis.results.traces import Drawn, Span, StepHistory, Timeline
from scaling.analysis.results.verdicts import NO_CAUSE, Remedy, SelfTest, SelfTestCase, Verdict, Verification
from scaling.records.run import TrialStatus

SCHEMA = 2
