"""What no longer fits and went live nevertheless does no harm when it is due."""

from __future__ import annotations

from datetime import timedelta

from tests.conformance.worlds import Probe, Run

from sapwood import Agent, Cron
from sapwood.address import Address

MINUTE = timedelta(minutes=1)
ZONE = """UPDATE sapwood_calls SET schedule = '{"cron":"* * * * *","tz":"%s"}'"""


class Alarm(Agent):
    deps: Probe

    async def set(self) -> None:
        self.schedule(Cron("* * * * *", "Europe/Berlin"), self.ring)

    async def ring(self) -> None:
        self.deps.log.append("ring")


async def test_a_cron_in_a_time_zone_that_the_machine_does_not_know_waits_until_it_does(run: Run, probe: Probe) -> None:
    async with run(Alarm, deps=probe) as world:
        await (await world.get_agent(Alarm, "a")).set()
        database = world.node.loader.tree(Address.root_of("Alarm", "a")).root
        database.execute(ZONE % "Mars/Olympus")

        await world.clock.advance(12 * MINUTE)
        assert probe.log == []

        world.node.loader.tree(Address.root_of("Alarm", "a")).root.execute(ZONE % "Europe/Berlin")
        await world.clock.advance(12 * MINUTE)
        assert 8 <= len(probe.log) <= 12
