"""LoRA on vLLM: the base loaded once, then nothing but adapters sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skpo.rollout.vllm.transfer import shared_folder, write_checkpoint
from skpo.rollout.weights import checkpoint_tensors

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  #: that vLLM makes room for; an adapter takes the next one up


class Adapters:
    """The adapters of a PEFT model, as vLLM takes them.

    request: what every vLLM request carries to be computed with the newest adapters.
    """

    def __init__(self, model: Any, rank: int) -> None:
        self._model, self._rank = model, rank
        self._count = 0
        self.request: Any = None

    @classmethod
    def of(cls, model: Any) -> Adapters | None:
        """The adapters of a model, or None where there are none, or none of a kind that vLLM applies itself."""
        configs = list(getattr(model, "peft_config", {}).values())
        if len(configs) != 1 or configs[0].modules_to_save or configs[0].use_dora:
            return None
        rank = max([configs[0].r, *configs[0].rank_pattern.values()])
        return cls(model, rank) if rank <= RANKS[-1] else None

    def arguments(self) -> dict[str, Any]:
        """Engine arguments that make room for them."""
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": next(r for r in RANKS if r >= self._rank)}

    def write_base(self, folder: Path) -> None:
        """The frozen base as a checkpoint that vLLM loads when it starts."""
        with self._model.disable_adapter():
            write_checkpoint(checkpoint_tensors(self._model), folder)

    def send(self, engine: Any) -> None:
        """Give vLLM the adapters as they are now, in place of those it has."""
        from vllm.lora.request import LoRARequest

        before, self._count = self.request, self._count + 1
        size = sum(p.nbytes for p in self._model.parameters() if p.requires_grad)
        with shared_folder(size) as folder:
            self._model.save_pretrained(folder, save_embedding_layers=False)
            self.request = LoRARequest(f"skpo-{self._count}", self._count, str(folder))
            if before is not None:
                engine.remove_lora(before.lora_int_id)
            engine.add_lora(self.request)
