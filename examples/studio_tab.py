"""A greenhouse with its own tab in the studio: `sapwood dev studio_tab.py`."""

import asyncio
import sys
from dataclasses import dataclass, replace
from datetime import timedelta

from sapwood import Agent, App, Every, Settings, expose
from sapwood.studio import StudioTab


@dataclass(frozen=True)
class Climate:
    target: int = 20
    degrees: tuple[int, ...] = (16,)


# --8<-- [start:agent]
class Greenhouse(Agent[Climate]):
    initial_state = Climate()
    studio_tabs = (
        StudioTab("Climate", "studio_tab.html", methods=("set_target", "measure")),
    )

    async def on_start(self) -> None:
        self.schedule(Every(timedelta(minutes=10), key="measure"), self.measure)

    @expose
    async def set_target(self, target: int) -> None:
        if not 5 <= target <= 35:
            raise ValueError(f"target must be from 5 to 35, got {target}.")
        self.set_state(replace(self.state, target=target))

    @expose
    async def measure(self) -> int:
        last, target = self.state.degrees[-1], self.state.target
        now = last + (target > last) - (target < last)
        self.set_state(replace(self.state, degrees=(*self.state.degrees, now)[-24:]))
        return now


# --8<-- [end:agent]


app = App(agents=[Greenhouse])


async def main(data: str) -> None:
    async with App(agents=[Greenhouse], settings=Settings(data=data)) as here:
        greenhouse = await here.get_agent(Greenhouse, "north")
        await greenhouse.set_target(18)
        print("degrees:", await greenhouse.measure())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "studio-tab-data"))
