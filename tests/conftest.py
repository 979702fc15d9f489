"""Settings of the whole test session."""

from hypothesis import HealthCheck, settings

# A busy machine is not a failure.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
