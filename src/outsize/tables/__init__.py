"""Pillar 1, how a table is represented: one file per method (see `TABLES`), and what they share.

They share `sizing` and `weights` (how large, and with which first values), `columns`, `digits` and
`factors` (how vectors are put together), `composed_table`, `clustered_table`, `pointers`,
`reclustering` and `diagnosis` (how ids come to share codes, and whether that works).
"""

from outsize.tables.build import TABLES, build_table, build_tables
from outsize.tables.cce import CCETable
from outsize.tables.ce_concat import CEConcatTable
from outsize.tables.ce_hybrid import CEHybridTable
from outsize.tables.circular import CircularTable
from outsize.tables.dhe import DHETable
from outsize.tables.diagnosis import PointerDiagnosis, diagnose_pointers
from outsize.tables.full import FullTable
from outsize.tables.hash import HashTable
from outsize.tables.hash_embedding import HashEmbeddingTable
from outsize.tables.int8 import Int8Table
from outsize.tables.low_rank import LowRankTable
from outsize.tables.packed_cce import PackedCCETable
from outsize.tables.probe import Probe, ProbeBlock
from outsize.tables.qr import QRTable
from outsize.tables.quantize import QuantizedTable, quantize
from outsize.tables.robe import RobeTable
from outsize.tables.tensor_train import TensorTrainTable

__all__ = [
    "TABLES",
    "CCETable",
    "CEConcatTable",
    "CEHybridTable",
    "CircularTable",
    "DHETable",
    "FullTable",
    "HashEmbeddingTable",
    "HashTable",
    "Int8Table",
    "LowRankTable",
    "PackedCCETable",
    "PointerDiagnosis",
    "Probe",
    "ProbeBlock",
    "QRTable",
    "QuantizedTable",
    "RobeTable",
    "TensorTrainTable",
    "build_table",
    "build_tables",
    "diagnose_pointers",
    "quantize",
]
