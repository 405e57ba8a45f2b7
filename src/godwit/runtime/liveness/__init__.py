"""Which hosts are alive and where: leases, wills of lost hosts, heartbeats, and the end of waits for a host that is gone."""
