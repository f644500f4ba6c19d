"""What all tests share."""


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the tests that take minutes too")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
