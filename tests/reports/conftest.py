"""Reports without the price of drawings."""

from typing import Any

import pytest


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are laid out and named, and saved as an empty drawing."""

    def save(figure: Any, file: Any, **options: Any) -> None:
        file.write(b'<svg width="1pt" height="1pt"><g id="figure_1"></g></svg>')

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)
