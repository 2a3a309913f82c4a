"""The examples that `guild init` writes and `guild demo` plays. The files of an example are in `data`."""
