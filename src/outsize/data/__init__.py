"""Data for each kind of task: logs read from files, and data made on the fly."""

from collections.abc import MutableMapping

from outsize.data.avazu import AvazuConfig
from outsize.data.click_data import ClickBatch, ClickData, ClickDataConfig
from outsize.data.criteo import CriteoConfig
from outsize.data.encoded import EncodedClicks
from outsize.data.graphs.amazon import AmazonConfig
from outsize.data.graphs.edges import EdgesConfig
from outsize.data.graphs.graph import Graph, GraphData, GraphDataConfig, NodeLabels
from outsize.data.graphs.links import LinkSplit
from outsize.data.graphs.npz import NpzGraphConfig
from outsize.data.graphs.ogb import OgbConfig
from outsize.data.graphs.reddit import RedditConfig
from outsize.data.graphs.synthetic import SyntheticGraphConfig
from outsize.data.interactions import InteractionsConfig
from outsize.data.item_lists import ItemLists
from outsize.data.movielens import MovieLensConfig
from outsize.data.retrieval_data import Entities, PairBatch, RetrievalData, RetrievalDataConfig
from outsize.data.synthetic import SyntheticClicks, SyntheticConfig
from outsize.data.synthetic_interactions import SyntheticInteractionsConfig
from outsize.data.tabular import TabularConfig
from outsize.data.texts.beir import BeirConfig
from outsize.data.texts.config import TextDataConfig
from outsize.data.texts.ms_marco import MsMarcoConfig
from outsize.data.texts.pair_files import TextPairsConfig
from outsize.data.texts.pydocs import PydocsConfig
from outsize.data.texts.text_pairs import TextPairs, Texts
from outsize.data.texts.token_data import TokenData
from outsize.registries import ByTask

CLICK_DATA: dict[str, type[ClickDataConfig]] = {
    "synthetic": SyntheticConfig,
    "tabular": TabularConfig,
    "criteo": CriteoConfig,
    "avazu": AvazuConfig,
    "movielens": MovieLensConfig,
}
RETRIEVAL_DATA: dict[str, type[RetrievalDataConfig]] = {
    "interactions": InteractionsConfig,
    "synthetic-interactions": SyntheticInteractionsConfig,
    "text-pairs": TextPairsConfig,
    "beir": BeirConfig,
    "ms-marco": MsMarcoConfig,
    "pydocs": PydocsConfig,
}
GRAPH_DATA: dict[str, type[GraphDataConfig]] = {
    "synthetic-graph": SyntheticGraphConfig,
    "edges": EdgesConfig,
    "npz": NpzGraphConfig,
    "ogb": OgbConfig,
    "reddit": RedditConfig,
    "amazon": AmazonConfig,
}
DATA: MutableMapping[
    str, type[ClickDataConfig] | type[RetrievalDataConfig] | type[GraphDataConfig]
] = ByTask(click=CLICK_DATA, retrieval=RETRIEVAL_DATA, graph=GRAPH_DATA)

__all__ = [
    "CLICK_DATA",
    "DATA",
    "GRAPH_DATA",
    "RETRIEVAL_DATA",
    "AmazonConfig",
    "AvazuConfig",
    "BeirConfig",
    "ClickBatch",
    "ClickData",
    "ClickDataConfig",
    "CriteoConfig",
    "EdgesConfig",
    "EncodedClicks",
    "Entities",
    "Graph",
    "GraphData",
    "GraphDataConfig",
    "InteractionsConfig",
    "ItemLists",
    "LinkSplit",
    "MovieLensConfig",
    "MsMarcoConfig",
    "NodeLabels",
    "NpzGraphConfig",
    "OgbConfig",
    "PairBatch",
    "PydocsConfig",
    "RedditConfig",
    "RetrievalData",
    "RetrievalDataConfig",
    "SyntheticClicks",
    "SyntheticConfig",
    "SyntheticGraphConfig",
    "SyntheticInteractionsConfig",
    "TabularConfig",
    "TextDataConfig",
    "TextPairs",
    "TextPairsConfig",
    "Texts",
    "TokenData",
]
