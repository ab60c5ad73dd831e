"""From a recipe and `key=value` overrides to one validated `TrainConfig`, and back to YAML.

Three layers, later ones win: `base`, the recipe (YAML), the overrides. Every key is known, is given once in a file,
and every complaint says where the value came from, what it was and what is allowed.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from skpo.config import TrainConfig
from skpo.errors import ConfigError, unknown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

RECIPES = Path(__file__).parent / "recipes"  #: recipes that come with the package

#: Short top-level keys, in files and overrides alike; `model` and `algorithm` are short when they hold a single word.
SHORTHANDS = {
    "engine": "rollout.engine",
    "lr": "optimizer.lr",
    "model": "model.path",
    "algorithm": "algorithm.name",
}

Tree = dict[str, Any]
Origins = dict[str, str]  #: dotted key -> where its value was given


class Loader(yaml.SafeLoader):
    """SafeLoader in which `1e-6` is a number (in YAML 1.1 it is text)."""


class Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which `Loader` would read as a number."""


_FLOAT = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
for _class in (Loader, Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def load_config(
    recipe: str | Path | None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Read a recipe, apply `key.sub=value` overrides, validate.

    recipe:    a YAML file, or the name of a packaged recipe (`chain`, `chain.yaml`, `recipes/chain.yaml`); None: no file.
    overrides: applied in order. Values are YAML; `algorithm=grpo` replaces the whole algorithm, `algorithm.skip=false` sets one option.
    base:      nested settings under the recipe's, as from `TrainConfig.model_dump()`.
    Raises ConfigError in one line: where, which key, what was found, what is allowed.
    """
    tree: Tree = {}
    origins: Origins = {}
    if base is not None:
        _merge(tree, base, origins, "", lambda key: "base settings")
    if recipe is not None:
        path = find_recipe(recipe)
        content, lines = read_yaml(path)
        _merge(tree, content, origins, "", lambda key: f"{path}:{lines.get(key, 1)}")
    for text in overrides:
        _override(tree, text, origins)
    _refuse_unknown(tree, origins)
    for name, field in TrainConfig.model_fields.items():
        if field.is_required() and section_of(field):
            tree.setdefault(name, {})  # so that the complaint names the key inside it
    try:
        config = TrainConfig.model_validate(tree)
    except ValidationError as error:
        messages = dict.fromkeys(_explain(e, tree, origins) for e in error.errors())
        raise ConfigError("; ".join(messages)) from None
    _check(config, origins)
    return config


def dump_config(config: TrainConfig) -> str:
    """YAML text of every setting; loading it gives an equal config."""
    return yaml.dump(_plain(config.model_dump()), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def validate_algorithm(config: TrainConfig) -> Any:
    """Build the config's algorithm: raises ConfigError for an unknown name or option. Imports torch, so only when training starts."""
    from skpo.algorithms import get_algorithm

    options = dict(config.algorithm)
    return get_algorithm(options.pop("name"), **options)


def find_recipe(recipe: str | Path) -> Path:
    """A path that exists, else the packaged recipe of that name. Raises ConfigError that lists the packaged ones."""
    path = Path(recipe)
    if path.is_file():
        return path
    packaged = RECIPES / f"{path.stem}.yaml"
    if path.parent in (Path(), Path("recipes")) and path.suffix in ("", ".yaml", ".yml") and packaged.is_file():
        return packaged
    if path.is_dir():
        raise ConfigError(f"{path} is a folder, not a recipe; to go on with a run: skpo train --resume {path}")
    message = unknown("recipe", str(recipe), (p.stem for p in RECIPES.glob("*.yaml")))
    raise ConfigError(f"{message} Or give the path of a YAML file.")


def read_yaml(path: Path) -> tuple[Tree, dict[str, int]]:
    """A YAML mapping and the line of every dotted key in it. Refuses duplicate keys and anything that is no mapping."""
    try:
        loader = Loader(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from None
    lines: dict[str, int] = {}
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, lines
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path}: holds no settings: expected `key: value` lines")
        _key_lines(node, "", lines, path)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    finally:
        loader.dispose()


def _key_lines(node: yaml.MappingNode, prefix: str, lines: dict[str, int], path: Path) -> None:
    """Fill in the line of every key; a key given twice is refused, where YAML would silently keep the last one."""
    for key_node, value_node in node.value:
        key, line = f"{prefix}{key_node.value}", key_node.start_mark.line + 1
        if key in lines:
            raise ConfigError(f'{path}:{line}: "{key}" is given twice (first in line {lines[key]}); keep one')
        lines[key] = line
        if isinstance(value_node, yaml.MappingNode):
            _key_lines(value_node, f"{key}.", lines, path)


def _merge(tree: Tree, new: Mapping[str, Any], origins: Origins, prefix: str, where: Any) -> None:
    """Lay `new` over `tree`: sections key by key, the algorithm and everything else as a whole."""
    for name, value in new.items():
        key, name = f"{prefix}{name}", str(name)
        origins[key] = where(key)
        if key in SHORTHANDS and not isinstance(value, Mapping):
            _set(tree, SHORTHANDS[key], value, origins, origins[key])
        elif isinstance(value, Mapping) and key == "algorithm":
            tree[name] = dict(value)
            origins.update({f"{key}.{option}": where(f"{key}.{option}") for option in value})
        elif isinstance(value, Mapping):
            section = tree.get(name)
            tree[name] = section if isinstance(section, dict) else {}
            _merge(tree[name], value, origins, f"{key}.", where)
        else:
            tree[name] = value


def _set(tree: Tree, key: str, value: Any, origins: Origins, where: str) -> None:
    """Set one dotted key; sections on the way are made. `algorithm.name` starts a new algorithm mapping."""
    for stale in [k for k in origins if k.startswith(f"{key}.")]:
        del origins[stale]
    origins[key] = where
    if key == "algorithm.name":
        tree["algorithm"] = {"name": value}
        return
    *sections, last = key.split(".")
    for name in sections:
        inner = tree.get(name)
        if not isinstance(inner, dict):
            inner = tree[name] = {"name": "skpo"} if name == "algorithm" else {}  # the default algorithm's option
        tree = inner
    tree[last] = value


def _override(tree: Tree, text: str, origins: Origins) -> None:
    """Apply one `key.sub=value`."""
    key, equals, raw = text.partition("=")
    key, where = key.strip(), f'override "{text}"'
    if not equals or not key:
        raise ConfigError(f"{where}: expected key=value, for example steps=200 or rollout.temperature=0.8")
    value = _override_value(SHORTHANDS.get(key, key) if key != "algorithm" else key, raw)
    if key in SHORTHANDS and not isinstance(value, Mapping):
        key = SHORTHANDS[key]
    _set(tree, key, value, origins, where)


def _override_value(key: str, raw: str) -> Any:
    """The text after `=` as YAML; as it stands where the setting is text (`{segment}|{problem}` is no mapping there)."""
    try:
        value = yaml.load(raw, Loader=Loader)
    except yaml.YAMLError:
        return raw
    field = field_at(key)
    kinds = set(_kinds(field.annotation)) if field else set()
    if value is None or isinstance(value, str) or not kinds & {str, Path}:
        return value
    structured = isinstance(value, list) and list in {get_origin(kind) for kind in kinds}
    mapping_for_section = isinstance(value, dict) and key == "model.path" and "path" in value
    return value if structured or mapping_for_section else raw


def iter_fields(model: type[BaseModel] = TrainConfig, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(dotted key, field) of every setting, sections included, in the order of `skpo.config`."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", field
        if section := section_of(field):
            yield from iter_fields(section, f"{prefix}{name}.")


def field_at(key: str) -> FieldInfo | None:
    """The field of a dotted key, or None."""
    return next((field for name, field in iter_fields() if name == key), None)


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The settings class that a field holds, if it is a section (optional or not)."""
    return next((k for k in _kinds(field.annotation) if isinstance(k, type) and issubclass(k, BaseModel)), None)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def allowed(field: FieldInfo) -> str:
    """What a setting may hold, in words: `a whole number of at least 1, or null`."""
    words = []
    for kind in _kinds(field.annotation):
        if get_origin(kind) is Literal:
            words.append(" | ".join(map(str, get_args(kind))))
        elif get_origin(kind) is tuple:
            words.append(f"a list of {len(get_args(kind))} numbers")
        elif get_origin(kind) is list:
            words.append("a list of text")
        elif get_origin(kind) is dict:
            words.append(
                "a name, or a mapping with `name` and options"
                if field.get_default(call_default_factory=True)
                else "a mapping"
            )
        elif kind is type(None):
            words.append("null")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            words.append(f"a mapping with {', '.join(kind.model_fields)}")
        else:
            words.append(_number(kind, field) or {bool: "true | false", Path: "a path"}.get(kind, "text"))
    return ", or ".join(words)


def _number(kind: Any, field: FieldInfo) -> str | None:
    """`a number greater than 0 and at most 1`; None for a type that is no number."""
    noun = {int: "a whole number", float: "a number"}.get(kind)
    if noun is None:
        return None
    phrases = {"gt": "greater than", "ge": "of at least", "lt": "less than", "le": "at most"}
    bounds = [
        f"{phrase} {getattr(mark, bound)}"
        for mark in field.metadata
        for bound, phrase in phrases.items()
        if getattr(mark, bound, None) is not None
    ]
    return " ".join([noun, " and ".join(bounds)]).strip()


def _refuse_unknown(tree: Tree, origins: Origins) -> None:
    """Raise for the first key that no setting has, with the nearest one."""
    known = dict(iter_fields())

    def walk(part: Mapping[str, Any], prefix: str) -> None:
        for name, value in part.items():
            key = f"{prefix}{name}"
            if key not in known:
                where = origins.get(key) or next((o for k, o in origins.items() if k.startswith(f"{key}.")), "settings")
                raise ConfigError(f'{where}: unknown key "{key}"; {_nearest(key, list(known))}')
            if isinstance(value, Mapping) and section_of(known[key]):
                walk(value, f"{key}.")

    walk(tree, "")


def _nearest(key: str, known: list[str]) -> str:
    """`did you mean "optimizer.lr"?`: the same last word elsewhere, else the closest spelling, else the keys of that section."""
    section, _, last = key.rpartition(".")
    siblings = [k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == section]
    near = [k for k in known if k.rpartition(".")[2] == last]
    near = near or [f"{section}.{k}".lstrip(".") for k in difflib.get_close_matches(last, siblings, n=1, cutoff=0.6)]
    if not near:
        leaves = {k.rpartition(".")[2]: k for k in reversed(known) if k != section}
        near = [leaves[name] for name in difflib.get_close_matches(last, list(leaves), n=1, cutoff=0.7)]
    if near:
        return "did you mean " + " or ".join(f'"{k}"' for k in near) + "?"
    return f"known {f'in {section}' if section else 'keys'}: {', '.join(siblings)}"


def _explain(error: ErrorDetails, tree: Tree, origins: Origins) -> str:
    """One validation error of pydantic as `where: key = value is not allowed; expected ...`."""
    known = dict(iter_fields())
    parts = [str(part) for part in error["loc"]]
    while parts and ".".join(parts) not in known:
        parts.pop()  # the index in a list, or the branch of a union
    key = ".".join(parts)
    where = next((origins[k] for k in _prefixes(key) if k in origins), None)
    at = f"{where}: " if where else ""
    if error["type"] == "missing" and len(parts) == len(error["loc"]):
        return f'{at}"{key}" is missing: {(known[key].description or allowed(known[key])).split(chr(10))[0]}'
    value: Any = tree
    for part in parts:
        value = value.get(part) if isinstance(value, Mapping) else None
    return f"{at}{key} = {value!r} is not allowed; expected {allowed(known[key])}"


def _prefixes(key: str) -> Iterator[str]:
    """`a.b.c`, `a.b`, `a`."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _check(config: TrainConfig, origins: Origins) -> None:
    """Settings that contradict each other."""
    name = config.algorithm.get("name")
    if not isinstance(name, str):
        where = origins.get("algorithm.name") or origins.get("algorithm", "settings")
        raise ConfigError(f"{where}: algorithm.name = {name!r} is not allowed; expected one of `skpo algorithms`")
    if config.rollout.ahead and config.rollout.engine != "ray":
        raise ConfigError(
            f"rollout.ahead = {config.rollout.ahead} needs rollout.engine = ray: the next rollouts run on its workers, which keep the "
            f"weights of before, while this process trains; {config.rollout.engine} samples from the weights that are being trained"
        )
    if config.optimizer.mini_batches > config.problems_per_step:
        raise ConfigError(
            f"optimizer.mini_batches = {config.optimizer.mini_batches} is more than problems_per_step = "
            f"{config.problems_per_step}; every mini-batch needs at least one problem"
        )


def _plain(value: Any) -> Any:
    """Paths as text and tuples as lists, all the way down."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
