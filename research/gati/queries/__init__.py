"""GATI's evaluation of replanning (section 7.3): its traffic application simulated, baselines and planners."""
