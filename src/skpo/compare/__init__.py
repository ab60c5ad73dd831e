"""`skpo compare`: several algorithms on one recipe, at an equal number of generated tokens, over seeds."""

from skpo.compare.runner import Comparison
from skpo.compare.variants import Variant, parse_variants

__all__ = ["Comparison", "Variant", "parse_variants"]
