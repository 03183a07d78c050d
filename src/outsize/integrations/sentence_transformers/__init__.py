"""The negative cache as a loss for sentence-transformers.

`NegativeCacheLoss` is used like the losses of that library, with its Trainer or in a loop of one's
own. The extra `text` installs what its Trainer needs.
"""

from outsize.integrations.sentence_transformers.assemble import assemble_model
from outsize.integrations.sentence_transformers.loss import NegativeCacheLoss
from outsize.integrations.sentence_transformers.settings import TextCacheSettings

__all__ = ["NegativeCacheLoss", "TextCacheSettings", "assemble_model"]
