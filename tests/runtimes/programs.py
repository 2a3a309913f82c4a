"""What the tests of programs as runtimes stand on: doors of a run by hand, served to a real program in its jail."""

from __future__ import annotations


