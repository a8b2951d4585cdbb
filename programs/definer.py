"""Defines the flags of a program."""

import functools

from absl import flags

from programs import paths

# Flags count as those of the module that calls a `Definer`.
flags.disclaim_key_flags()


class Definer:
  """Defines flags in one set of flags.

  The methods take the arguments of `flags.DEFINE_...`, `paths.define_path` and
  `flags.register_validator`.
  """

  def __init__(self, values: flags.FlagValues):
    def bound(define):
      return functools.partial(define, flag_values=values)

    self.bool = bound(flags.DEFINE_bool)
    self.enum = bound(flags.DEFINE_enum)
    self.float = bound(flags.DEFINE_float)
    self.integer = bound(flags.DEFINE_integer)
    self.list = bound(flags.DEFINE_list)
    self.string = bound(flags.DEFINE_string)
    self.path = bound(paths.define_path)
    self.validate = bound(flags.register_validator)
