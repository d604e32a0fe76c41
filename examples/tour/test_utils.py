import utils


def test_hello():
    assert utils.hello_world() == "Hello, World!"


def test_one():
    assert utils.one() == 1
