"""What runs beside the model, inside vLLM's worker: taking new weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

NAME = f"{__name__}.TrainerWeights"  #: for vLLM's `worker_extension_cls`


class TrainerWeights:
    """Methods that vLLM adds to its worker class; called through `collective_rpc`.

    New weights are loaded in place, from a checkpoint's names and shapes. On a CPU vLLM keeps a packed copy of each matrix; for a
    tied output head, which has no weights of its own in a checkpoint, the reload leaves that copy as it was.
    """

    def skpo_load(
        self: Any, weights: Iterable[tuple[str, Tensor]] | None = None, files: Sequence[str] | None = None
    ) -> None:
        """Load weights from safetensors files, or as given (in one process with the trainer)."""
        self.reload_weights(weights_iterator=read(files) if files is not None else weights)
        self.skpo_refresh_head()

    def skpo_refresh_head(self: Any) -> None:
        """Pack the embeddings and the output head again from the weights that they have now."""
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        for module in self.get_model().modules():
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)


def read(files: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of safetensors files, one after the other, without reading a whole file at once."""
    from safetensors import safe_open

    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                yield name, opened.get_tensor(name)
