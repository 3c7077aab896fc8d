"""Table of contents for `fab`: what can be done with a cluster once `pulumi up` has made it."""

from invoke.collection import Collection

from bootstrap.arguments import after_dashes, refuse_what_cannot_be_read
from bootstrap.tasks import bootstrap, ssh
from infra.tasks import choose, leftovers, prices
from launcher.tasks import attach, logs, status, stop, train

after_dashes()  # while this file is loaded, or Fabric takes what follows `--` for a command of its own

refuse_what_cannot_be_read()

namespace = Collection(bootstrap, ssh, train, attach, logs, status, stop, leftovers, prices, choose)
