"""From a verdict to text. Pure.

``view`` reduces a ``Comparison`` to what a reader sees; ``terminal`` and ``markdown`` print that.
``pull_request`` makes a comment of the artifact that ``artifact`` accepts.
"""
