"""Table of contents for `fab`: what can be done with a cluster once `pulumi up` has made it."""

from invoke.collection import Collection

from bootstrap.arguments import after_dashes
from bootstrap.tasks import bootstrap, ssh
from infra.tasks import leftovers
from launcher.tasks import attach, logs, status, stop, train

after_dashes()  # while this file is loaded, or Fabric takes what follows `--` for a command of its own

namespace = Collection(bootstrap, ssh, train, attach, logs, status, stop, leftovers)
