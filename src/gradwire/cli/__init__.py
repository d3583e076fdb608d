"""The command line: one command a file. Starts without loading torch."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import click

from gradwire.cli import bench, demo, doctor, measure, plan, report, simulate
from gradwire.errors import CommandError, GradwireError, SpecError
from gradwire.version import installed_version

USAGE_ERROR = 2
_INTERRUPTED = 130
_BY_SIGNAL = 128


class Commands(click.Group):
    """A group that answers every mistake in one line on standard error."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:  # noqa: ANN401 - click's signature
        """Run a command and exit.

        With 0 when done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated.
        """
        options["standalone_mode"] = False
        before = signal.signal(signal.SIGTERM, _terminated)  # else nothing is cleaned up
        try:
            code = super().main(args, *rest, **options)
        except click.ClickException as error:
            code = _report(error.format_message(), error.exit_code)
        except CommandError as error:
            code = _report(str(error), error.exit_code)
        except SpecError as error:
            code = _report(str(error), USAGE_ERROR)
        except GradwireError as error:
            code = _report(str(error), 1)
        except (click.Abort, KeyboardInterrupt):
            code = _report("interrupted", _INTERRUPTED)
        finally:
            signal.signal(signal.SIGTERM, before)
        sys.exit(code)


def _terminated(number: int, _: FrameType | None) -> None:
    sys.exit(_BY_SIGNAL + number)


def _report(message: str, code: int) -> int:
    click.echo(f"gradwire: {message}", err=True)
    return code


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(installed_version(), message="%(prog)s %(version)s")
def main() -> None:
    """Compressed gradient exchange for PyTorch data-parallel training."""


main.add_command(bench.command)
main.add_command(demo.command)
main.add_command(doctor.command)
main.add_command(measure.command)
main.add_command(plan.command)
main.add_command(report.command)
main.add_command(simulate.command)
