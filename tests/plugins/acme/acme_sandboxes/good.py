"""A backend of somebody else. Its service is the testing kit's; the class is what a third party writes."""

from __future__ import annotations

from typing import ClassVar

from openenv_sandbox.provider import Check, Verified
from openenv_sandbox.testing.fake import FakeOptions, FakeProvider


class AcmeProvider(FakeProvider):
    """Sandboxes at ``address``."""

    name = "acme"
    title = "Acme"
    verified = Verified("emulator", note="of its own")
    Options: ClassVar[type[FakeOptions]] = FakeOptions

    @classmethod
    def check(cls, options: object = None) -> Check:
        """Ready once an address is configured."""
        if options is not None and cls.parse_options(options).address:
            return Check(True)
        return Check(False, "no address", "set OPENENV_PROVIDERS__ACME__ADDRESS")
