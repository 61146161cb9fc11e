"""Where model-written code runs: what it may do there is said in `trial.py`."""

from tacg.sandbox.trial import LEVELS, ResourceLimits, Trial, Verdict, level, probe, refuse_weaker, run, wanted

__all__ = ["LEVELS", "ResourceLimits", "Trial", "Verdict", "level", "probe", "refuse_weaker", "run", "wanted"]
