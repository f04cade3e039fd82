"""A sweeper that searches: it goes through a list of values as long as the objective rises."""

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

ConfigStore.instance().store(
    group="hydra/sweeper", name="climbing", node={"_target_": "hydra_plugins.climbing.Climbing"}
)


class Climbing(Sweeper):
    """Takes one override with several values, `key=1,2,4`; the others are passed on."""

    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        swept = next(a for a in arguments if "," in a and "[" not in a)
        key, _, values = swept.partition("=")
        fixed = [a for a in arguments if a != swept]
        best = None
        for index, value in enumerate(values.split(",")):
            (job,) = self.launcher.launch([[*fixed, f"{key}={value}"]], initial_job_idx=index)
            if best is not None and job.return_value <= best[0]:
                break
            best = (job.return_value, value)
        print(f"best {key}={best[1]} {best[0]:.6g}")
