"""What the peers need before they can be measured: Flink in a virtual environment of its own, and the Java parts compiled.

Everything goes to `.peers/`, where a second call finds what is there already. Flink's two packages are installed without what
they depend on: the job is Java, and only the jars and scripts inside them are used. Flink's Kafka connector is not in these
packages; it comes from Maven's repository, and is put beside Flink's own jars.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.running.watch import Watch
from godwit.errors import DefinitionError
from godwit.testing.jars import fetched

HOME: Final = Path(".peers")
CONSTRAINTS: Final = Path("benchmarks/peers-constraints.txt")
PACKAGES: Final = ("apache-flink", "apache-flink-libraries")
# The newest there is: it is built for Flink 2.2, and works with 2.3. It contains Kafka's client.
CONNECTOR: Final = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
SOURCES: Final = Path(__file__).parent / "java"
DIGEST: Final = "SOURCES"  # in a jar: what it was made from
FAILURE_TAIL: Final = 2_000


def prepare(watch: Watch) -> None:
    """Everything that is not there yet."""
    compiler = javac()
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    _install(watch)
    _add_connector(watch)
    for system in ("flink", "spark"):
        _compile(compiler, system, watch)


def require(system: str) -> None:
    """A run needs what `prepare` makes."""
    made = jar(system).exists() and (system != "flink" or (_installed() and _connector().exists()))
    if not made or _digest_in(jar(system)) != _digest_of(_sources(system)):
        raise DefinitionError(f"{system} is not set up, or not as this version needs it", todo="Run `make peers` first")


def jar(system: str) -> Path:
    return (HOME / f"{system}.jar").absolute()


def flink_home() -> Path:
    """The folder inside Flink's packages with its scripts and jars."""
    installed = sorted((HOME / "flink").absolute().glob("lib/python3.*/site-packages/pyflink"))
    if not installed:
        raise DefinitionError("Flink is not installed", todo="Run `make peers` first")
    return installed[-1]


def version(system: str) -> str:
    """Of what is measured: of the jar that runs, not of what was asked for."""
    if system == "spark":
        return metadata.version("pyspark")
    return next((flink_home() / "lib").glob("flink-dist-*.jar")).stem.removeprefix("flink-dist-")


# -- Java ------------------------------------------------------------------------------------------------------------


def java_home() -> Path:
    """Of the Java that `java` starts, or the one that JAVA_HOME names."""
    given = os.environ.get("JAVA_HOME")
    if given:
        return Path(given)
    java = shutil.which("java")
    if java is None:
        raise DefinitionError("no Java found, in JAVA_HOME or on PATH", todo="Install one, or set JAVA_HOME")
    return Path(java).resolve().parents[1]


def javac() -> Path:
    beside = java_home() / "bin" / "javac"
    compiler = str(beside) if beside.exists() else shutil.which("javac")
    if compiler is None:
        raise DefinitionError(
            f"no Java compiler in {java_home()} or on PATH: a runtime alone is not enough here",
            todo="Install a JDK (on Debian and Ubuntu: apt-get install openjdk-17-jdk-headless), or set JAVA_HOME to one",
        )
    return Path(compiler)


def _classpath(system: str) -> str:
    if system == "flink":
        return str(flink_home() / "lib" / "*")
    spec = find_spec("pyspark")
    assert spec is not None, "this package depends on pyspark"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "jars" / "*")


def _sources(system: str) -> list[Path]:
    return sorted([*(SOURCES / "shared").glob("*.java"), *(SOURCES / system).glob("*.java")])


def _compile(compiler: Path, system: str, watch: Watch) -> None:
    sources = _sources(system)
    digest = _digest_of(sources)
    if _digest_in(jar(system)) == digest:
        return
    watch.phase(f"compiling the {system} part")
    with tempfile.TemporaryDirectory(prefix="godwit-javac-") as classes:
        command = [str(compiler), "--release", "17", "-nowarn", "-d", classes, "-cp", _classpath(system)]
        _call([*command, *map(str, sources)], "javac failed", "The versions of the packages may have changed")
        _pack(Path(classes), jar(system), digest)


def _pack(classes: Path, target: Path, digest: str) -> None:
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as packed:
        for path in sorted(classes.rglob("*.class")):
            packed.write(path, path.relative_to(classes).as_posix())
        packed.writestr(DIGEST, digest)
    part.replace(target)


def _digest_of(sources: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in sources)).hexdigest()


def _digest_in(packed: Path) -> str | None:
    if not packed.exists():
        return None
    with zipfile.ZipFile(packed) as file:
        return file.read(DIGEST).decode() if DIGEST in file.namelist() else None


# -- Flink -----------------------------------------------------------------------------------------------------------


def _stamp() -> Path:
    return HOME / "flink" / ".installed"


def _installed() -> bool:
    return _stamp().exists()


def _install(watch: Watch) -> None:
    if not CONSTRAINTS.exists():
        raise DefinitionError(f"{CONSTRAINTS} is not here", todo="Call this from the top of a checkout")
    pins = CONSTRAINTS.read_text()
    if _installed() and _stamp().read_text() == pins:
        return
    watch.phase("installing Flink (330 MB, once)")
    place = HOME / "flink"
    venv.create(place, with_pip=True, clear=True)
    _call(
        [str(place / "bin/python"), "-m", "pip", "install", "--no-deps", "--constraint", str(CONSTRAINTS), *PACKAGES],
        "Flink could not be installed",
        "It is fetched with pip: see that the network and pip's index can be reached, and that Flink has a package for "
        f"Python {sys.version_info.major}.{sys.version_info.minor}",
    )
    _stamp().write_text(pins)


def _connector() -> Path:
    """Among Flink's own jars its classes are loaded once; in the jar of the job they would be at each start of the job."""
    _, name, number = CONNECTOR.split(":")
    return flink_home() / "lib" / f"{name}-{number}.jar"


def _add_connector(watch: Watch) -> None:
    connector = _connector()
    if connector.exists():
        return
    watch.phase("fetching Flink's Kafka connector (11 MB, once)")
    [fetched_jar] = fetched([CONNECTOR])
    for older in connector.parent.glob(f"{CONNECTOR.split(':')[1]}-*.jar"):
        older.unlink()
    part = connector.with_suffix(".part")
    shutil.copyfile(fetched_jar, part)
    part.replace(connector)


def _call(command: list[str], failure: str, todo: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DefinitionError(f"{failure}:\n{(done.stdout + done.stderr)[-FAILURE_TAIL:]}\n", todo=todo)


class _StderrProgress:
    """Progress for a terminal or a file."""

    def phase(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def rows(self, seen: int, total: int) -> None:
        del seen, total


def main() -> int:
    try:
        prepare(_StderrProgress())
    except DefinitionError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stderr.write(f"the peers are ready in {HOME}/\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
