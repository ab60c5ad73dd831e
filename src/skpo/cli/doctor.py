"""`skpo doctor`: what this machine can run, and what would add to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Facts = dict[str, Any]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as one JSON object.")] = False,
) -> None:
    """Show what this machine can run, and what would add to it (takes a few seconds)."""
    facts = examine()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    from rich.console import Console

    show(facts, Console(highlight=False, soft_wrap=True))


def examine() -> Facts:
    """Everything that `skpo doctor` knows, ready for JSON."""
    from skpo import __version__
    from skpo.cli import machine

    torch_found, extras_found = machine.torch_facts(), machine.extras()
    return {
        "skpo": __version__,
        "machine": machine.hardware(),
        "torch": torch_found,
        "packages": machine.packages(),
        "extras": extras_found,
        "kernel": machine.kernel(),
        "speed": machine.speed() if torch_found["version"] else None,
        "recipes": machine.recipes(torch_found, extras_found),
    }


def show(facts: Facts, console: Console) -> None:
    """The facts as a page to read: a mark, a name, what was found, and what to do where something is missing."""
    here = facts["machine"]
    limit = f", limit {here['memory_limit_gib']} GiB" if here["memory_limit_gib"] else ""
    console.print(f"[bold]skpo {facts['skpo']}[/bold]  Python {here['python']}, {here['system']}")
    console.print(
        f"  {here['cores']} cores (load {here['load']}), memory {here['memory_free_gib']} of {here['memory_gib']} GiB "
        f"free{limit}, disk {here['disk_free_gib']} GiB free"
    )
    _show_torch(facts["torch"], facts["speed"], console)
    _show_packages(facts["packages"], console)
    console.print("\n[bold]optional[/bold]")
    for row in facts["extras"]:
        missing = f"missing {', '.join(row['missing'])}: {row['command']}"
        _line(console, row["ok"], row["name"], row["purpose"] if row["ok"] else f"{row['purpose']}; {missing}")
    console.print("\n[bold]isolation of untrusted code[/bold]")
    for name, found in facts["kernel"].items():
        _line(console, found, name.replace("_", " "), "available" if found else "not given by this kernel or container")
    console.print("\n[bold]recipes[/bold]")
    for row in facts["recipes"]:
        _line(console, row["ok"], row["name"], row["model"] if row["ok"] else f"needs {' and '.join(row['needs'])}")


def _show_torch(torch: Facts, speed: Facts | None, console: Console) -> None:
    console.print("\n[bold]torch[/bold]")
    if torch["version"] is None or speed is None:
        _line(console, False, "torch", "not installed: pip install torch==2.13.0")
        return
    _line(console, True, "torch", f"{torch['version']}, CUDA {torch['cuda'] or 'none'}")
    for gpu in torch["gpus"]:
        _line(console, True, gpu["name"], f"{gpu['memory_gib']} GiB, bf16 {'yes' if gpu['bf16'] else 'no'}")
    if torch["gpus"]:
        _line(console, torch["flash_attn"], "flash-attn", "installed" if torch["flash_attn"] else "not installed")
    words = f"fp32 {speed['fp32_gflops']:.0f}, bf16 {speed['bf16_gflops']:.0f} GFLOP/s on one thread"
    if "gpu_bf16_tflops" in speed:
        words += f"; GPU bf16 {speed['gpu_bf16_tflops']:.0f} TFLOP/s"
    _line(console, True, "speed", words)
    verdict = "two are faster" if speed["two_threads_faster"] else "two are no faster: keep threads=1 for small models"
    pair = f"{speed['small_ms_1_thread']:.2f} ms with one, {speed['small_ms_2_threads']:.2f} ms with two"
    _line(console, True, "threads", f"small matrix product {pair}; {verdict}")


def _show_packages(packages: list[Facts], console: Console) -> None:
    """Good ones in one paragraph, bad ones a line each."""
    console.print("\n[bold]packages[/bold]")
    good = [f"{row['name']} {row['installed']}" for row in packages if row["ok"]]
    if good:
        _line(console, True, "found", ", ".join(good))
    for row in packages:
        if not row["ok"]:
            found = f"{row['installed']} is installed" if row["installed"] else "not installed"
            command = f'pip install "{row["name"]}{row["required"]}"'
            _line(console, False, row["name"], f"{found}, {row['required'] or 'any version'} is needed: {command}")


def _line(console: Console, ok: bool, name: str, text: str) -> None:
    """`  ✓ name   text`, or a yellow dash."""
    from rich.markup import escape

    mark = "[green]✓[/green]" if ok else "[yellow]-[/yellow]"
    console.print(f"  {mark} {escape(f'{name:<20}')} {escape(text)}")
