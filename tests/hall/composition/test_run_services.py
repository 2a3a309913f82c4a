"""Run services: what a workflow database offers, and what only the hall has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from guildhall.hall.composition.environment import peek
from guildhall.hall.composition.hall import Hall
from guildhall.hall.composition.run_services import RunServices
from guildhall.hall.composition.workflow_databases import WorkflowDatabase

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.runs.purpose import RunKind

ONLY_IN_A_HALL = ("jobs", "commissions", "meetings", "projects", "project_services", "members", "owners")


@pytest.mark.parametrize("name", ONLY_IN_A_HALL)
def test_a_workflow_database_offers_no_jobs_commissions_meetings_or_projects(home: Home, tmp_path: Path, name: str):
    async def work() -> None:
        hall = Hall(home, environ={})
        try:
            database = await hall.workflow_databases.add(tmp_path / "team.db")
            assert isinstance(database, WorkflowDatabase)
            assert not isinstance(database, Hall)
            assert hasattr(hall, name)
            assert not hasattr(database, name)
        finally:
            await hall.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["job", "commission", "meeting"])
def test_no_service_owns_a_run_of_a_workflow_database(home: Home, tmp_path: Path, kind: RunKind):
    async def work() -> None:
        hall = Hall(home, environ={})
        try:
            database = await hall.workflow_databases.add(tmp_path / "team.db")
            assert hall.main.owner_of(kind) is not None
            assert database.owner_of(kind) is None
        finally:
            await hall.close()

    asyncio.run(work())


def test_every_database_of_a_hall_offers_the_same_run_services(home: Home, tmp_path: Path):
    async def work() -> None:
        hall = Hall(home, environ={})
        try:
            database = await hall.workflow_databases.add(tmp_path / "team.db")
            assert list(hall.all_services()) == [hall.main, database]
            for one in hall.all_services():
                assert isinstance(one, RunServices)
                assert one.peek_runs() is None
                assert one.is_alive("r-unknown") is False
                assert one.runs is one.peek_runs()
            assert hall.main.runs is not database.runs
            assert hall.main.workers is database.workers
        finally:
            await hall.close()

    asyncio.run(work())


def test_a_hall_that_only_reads_builds_no_service(home: Home):
    Hall(home, environ={}).release()
    hall = Hall(home, environ={}, readonly=True)
    try:
        assert hall.history.recent(10, children=False) == []
        parts = (Hall.jobs, Hall.members, Hall.memory, Hall.memory_compactor, Hall.workflow_databases)
        assert [peek(hall, part) for part in parts] == [None] * len(parts)
        assert hall.main.peek_runs() is None
    finally:
        hall.release()


def test_peek_returns_a_part_once_it_is_built_and_never_builds_it(home: Home):
    hall = Hall(home, environ={})
    try:
        assert peek(hall, Hall.memory) is None
        assert peek(hall, Hall.memory) is None
        memory = hall.memory
        assert peek(hall, Hall.memory) is memory is hall.memory
    finally:
        hall.release()
