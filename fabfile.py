"""Table of contents for `fab`: what can be done with a cluster once `pulumi up` has made it."""

from invoke.collection import Collection

from bootstrap.tasks import bootstrap, ssh
from infra.tasks import leftovers
from launcher.tasks import attach, logs, status, stop, train

namespace = Collection(bootstrap, ssh, train, attach, logs, status, stop, leftovers)
