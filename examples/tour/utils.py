"""Small things."""


def one():
    return 1
