"""Figures that mCache reports (Mo et al. 2025), to put beside those measured here."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cold:
    """A model of table 2: what it takes to execute and to load (seconds), and its size (bytes). On a V100."""

    model: str
    execution: float
    loading: float
    size: float


TABLE_2 = (
    Cold("MobileNetV1 0.25", 0.0160, 0.1318, 1.9e6),
    Cold("MobileNetV1 0.5", 0.0163, 0.1475, 5.2e6),
    Cold("MobileNetV1 0.75", 0.0174, 0.1727, 10.5e6),
    Cold("MobileNetV1 1.0", 0.0175, 0.2096, 17.1e6),
    Cold("DenseNet", 0.0308, 0.5863, 43.9e6),
    Cold("InceptionV3", 0.0347, 1.0106, 95.7e6),
    Cold("InceptionResNetV2", 0.0474, 1.4763, 121.6e6),
    Cold("InceptionV4", 0.0515, 1.6423, 171.2e6),
    Cold("NASNetLarge", 0.0700, 3.7023, 356.6e6),
)

# Table 3: mean seconds of loading with the random workload, by policy and share of the memory that all models take.
TABLE_3: Mapping[tuple[str, float], float] = {
    **{("lfu", 0.4): 8.20, ("lfu", 0.6): 7.35, ("lfu", 0.8): 4.38},
    **{("lru", 0.4): 6.93, ("lru", 0.6): 5.48, ("lru", 0.8): 2.57},
    **{("arc", 0.4): 6.36, ("arc", 0.6): 4.89, ("arc", 0.8): 2.23},
    **{("srrip", 0.4): 6.32, ("srrip", 0.6): 4.74, ("srrip", 0.8): 2.01},
    **{("iam", 0.4): 5.96, ("iam", 0.6): 4.21, ("iam", 0.8): 1.68},
}

# Section 6.2.2, figure 7: the share of the latency that is loading with the quantile workload, by share of the memory.
QUANTILE_LOADING: Mapping[float, float] = {0.2: 0.98, 0.8: 0.08}

# Figure 10 (section 6.3.2): throughput of IAM over that of LFU.
THROUGHPUT: Mapping[float, float] = {0.4: 1.5, 0.8: 2.39}

# Section 6.2.3: 90 % of requests load for less than so many seconds, in every workload.
NINE_TENTHS: Mapping[float, float] = {0.4: 10.0, 0.8: 3.0}

# Seconds of execution and of the way to the server: table 3 and figure 10 (b) together have x in
# (4.38 + x) / (1.68 + x) = 2.39. At 40 % no x makes their 1.5.
EXECUTION = 0.26
