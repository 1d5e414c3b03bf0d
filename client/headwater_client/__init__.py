"""A client of Headwater, which serves a transformer's insides: numpy arrays by the names of the stack's points."""

from headwater_client.answer import About, Answer
from headwater_client.async_client import AsyncClient
from headwater_client.call import Input
from headwater_client.errors import (
    BrokenAnswer,
    Busy,
    ClientClosed,
    DeadlineExceeded,
    FieldError,
    HeadwaterError,
    InvalidRequest,
    ModelChanged,
    NonFiniteResult,
    NotFound,
    NotReady,
    OutOfMemory,
    RunInUse,
    RunMismatch,
    ServerFault,
    TimedOut,
    TooLarge,
    Unauthorized,
    UnknownPoint,
    Unreachable,
)
from headwater_client.mapping import AsyncMapRun
from headwater_client.outputs import Output
from headwater_client.results import Report, Result
from headwater_client.retrying import Retries
from headwater_client.service_state import DryRun, Model
from headwater_client.streaming import AsyncStream, Stream
from headwater_client.sync_client import Client
from headwater_client.sync_map import MapRun
from headwater_client.tensors import Tensor

__all__ = [
    "About",
    "Answer",
    "AsyncClient",
    "AsyncMapRun",
    "AsyncStream",
    "BrokenAnswer",
    "Busy",
    "Client",
    "ClientClosed",
    "DeadlineExceeded",
    "DryRun",
    "FieldError",
    "HeadwaterError",
    "Input",
    "InvalidRequest",
    "MapRun",
    "Model",
    "ModelChanged",
    "NonFiniteResult",
    "NotFound",
    "NotReady",
    "OutOfMemory",
    "Output",
    "Report",
    "Result",
    "Retries",
    "RunInUse",
    "RunMismatch",
    "ServerFault",
    "Stream",
    "Tensor",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "UnknownPoint",
    "Unreachable",
]
