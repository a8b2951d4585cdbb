"""The paper's three tasks, a module each, and tasks from data of one's own."""

from tff_ocs.tasks.own_data import from_arrays
from tff_ocs.tasks.own_data import from_client_data
from tff_ocs.tasks.own_data import from_frame
