"""A model of the configuration as the FROM of another: what of its options a Modelfile can say. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from barrel_inference.errors import UnsupportedError
from barrel_inference.registry.modelfile import Modelfile, check_parameters
from barrel_inference.registry.modelfile.parameters import PARAMETERS
from barrel_inference.registry.names import tagged

if TYPE_CHECKING:
    from barrel_inference.registry.create import Known

_GROUPS = ("model_opts", "context_opts")
_SAID = ("parameters", "system", "template", "messages", "license", "model_path")
_PARAMETER = {parameter.loader: name for name, parameter in PARAMETERS.items() if parameter.loader}
# Where, when and how fast, but never what: a model made of this one may go without.
_LEFT = {
    *("backend", "tier", "tier_srv", "policy", "cache", "fingerprint", "fingerprint_mode", "ctx_params_hash"),
    *("context_size", "quant_type", "quant_bits", "stub", "n_ubatch", "n_threads_batch", "decode_budget_ms"),
    *("split_mode", "tensor_split", "prefetch", "pin_resident_after_first_request"),
}


def configured(models: Mapping[str, Mapping[str, Any]]) -> Callable[[str], Known | None]:
    """What a FROM means among ``server.models``. It raises UnsupportedError for one that cannot be built on."""
    by_name = {tagged(name): options for name, options in models.items()}

    def find(source: str) -> Known | None:
        options = by_name.get(tagged(source))
        return None if options is None else _known(source, options)

    return find


def _known(source: str, options: Mapping[str, Any]) -> Known:
    from barrel_inference.registry.create import Known  # brings the HTTP client, half of the time to start

    weights = options.get("model_path")
    if not weights or options.get("backend", "llama") != "llama":
        raise _refused(source, "it is configured without a file of weights")
    parameters: dict[str, Any] = {}
    for name, value in _load_options(options):
        if name in _PARAMETER:
            parameters |= {} if value == "auto" else {_PARAMETER[name]: value}
        elif name not in _LEFT:
            raise _refused(source, f"a model cannot be created with its {name}")
    said = {name: options[name] for name in ("system", "template") if options.get(name) is not None}
    return Known(
        weights=weights,
        says=Modelfile(
            sources=(),
            parameters=parameters | check_parameters(options.get("parameters", {})),
            messages=tuple(options.get("messages", ())),
            license=tuple(options.get("license", ())),
            **said,
        ),
    )


def _load_options(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Those that are given, without their groups."""
    for name, value in options.items():
        if name in _GROUPS:
            yield from value.items()
        elif name not in _SAID:
            yield name, value


def _refused(source: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"model '{source[:120]}' cannot be a FROM: {why}", option="from")
