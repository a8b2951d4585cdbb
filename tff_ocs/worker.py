"""The command `python -m tff_ocs.worker`, see `tff_ocs.runtime`."""

from tff_ocs.runtime import worker_command

if __name__ == '__main__':
  worker_command.main()
