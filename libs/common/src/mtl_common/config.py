"""Settings: frozen models, resolved from defaults, a preset, a TOML file, options and `--set key=value`."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """The base of every group of settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
