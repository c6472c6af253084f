"""Stand-ins for models and drafters, for the tests of whoever builds on the loop.

`TableVerifier` answers like a model at the cost of a hash, and fails loudly when it is fed wrong slots or positions.
The drafters propose text that is always right, always wrong, right now and then, or one token for ever.
"""

from spec2seq.testing.configs import tiny_config
from spec2seq.testing.drafters import ConstantDrafter, OracleDrafter, RandomDrafter, WrongDrafter
from spec2seq.testing.table_verifier import TableVerifier

__all__ = ["ConstantDrafter", "OracleDrafter", "RandomDrafter", "TableVerifier", "WrongDrafter", "tiny_config"]
