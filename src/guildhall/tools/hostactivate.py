"""Inside a tool host: calls the activation function of a package, and hands back what it said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import ToolUnavailable
from guildhall.tools.hostmodules import load, unusable

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST = 2_000_000  # characters


def activation(reference: str, sources: Mapping[str, str], context: Mapping[str, Any] | None) -> Any:
    """What the function says to the context. It need not make sense: that is looked at in the hall.

    Without a context it is not called: it is only wanted to be there.
    """
    what = "cannot be loaded"
    try:
        function = load(reference, sources)
        what = "failed"
        if not callable(function):
            found = "there is no such name in the module" if function is None else f"it is a {type(function).__name__}"
            raise ToolUnavailable(f"{reference} is no function: {found}")
        if context is None:
            return None
        text = json.dumps(function(dict(context)), allow_nan=False)
    except BaseException as error:  # noqa: BLE001 - whatever the function does, it is the function that is wrong
        raise unusable(reference, error, sources, what) from None
    if len(text) > _MOST:
        raise ToolUnavailable(f"{reference} said too much: {len(text):,} characters")
    return json.loads(text)
