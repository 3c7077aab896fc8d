"""What machines with GPUs cost at all providers, side by side: `fab prices`.

offer.py      one machine at one price: the row that all sources speak
wish.py       what was asked for, and which offers fit it           places.py    in which country a region is
sources.py    who can be asked, the best first                      asking.py    all of them at once, with a deadline
hunted.py     gpuhunt's published catalogue, and Vast.ai through it  live.py      APIs of our own provider modules
snapshot.py   dated figures that ship with this checkout            machines.py  what our tables know of a machine
table.py      the answer, as a table and as JSON                 command.py   the edge

Nothing here is used to make a cluster: `pulumi preview` has the estimate of the stack file, disks and addresses
included (infra/cost.py). Prices here are of the machines alone.
"""
