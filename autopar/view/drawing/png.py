"""SVG to PNG with cairosvg, which is the extra `autopar[png]`."""

from __future__ import annotations

from ...errors import AutoparError


def png_bytes(svg: str, scale: float = 2.0) -> bytes:
    """The picture as PNG, `scale` pixels for each of the SVG's.

    Raises AutoparError when cairosvg, or the cairo library of the system below it, is not installed.
    """
    try:
        import cairosvg
    except ImportError:
        raise AutoparError(
            "a .png picture needs cairosvg, which is not installed; "
            "type: pip install 'autopar[png]', or write .svg or .html instead"
        ) from None
    except OSError as error:
        raise AutoparError(
            "a .png picture needs the cairo library, which cairosvg cannot find on this system; "
            "install it (Debian: apt install libcairo2, macOS: brew install cairo), "
            "or write .svg or .html instead"
        ) from error
    return bytes(cairosvg.svg2png(bytestring=svg.encode(), scale=scale))
