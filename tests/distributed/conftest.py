# SPDX-License-Identifier: Apache-2.0
"""Clusters in a box for the tests of this folder."""

import pytest

from gossamer.testing import Cluster, Link, why_no_namespaces
from gossamer.testing.cluster import UNLIMITED


@pytest.fixture
def make_cluster(request):
    """A function like `Cluster`; tests marked `cluster` get namespaces or are skipped."""
    made = []

    def make(num_hosts, link=UNLIMITED, **settings):
        if request.node.get_closest_marker("cluster"):
            links = [link] if isinstance(link, Link) else link
            reason = why_no_namespaces(any(one.waits for one in links))
            if reason:
                pytest.skip(reason)
            settings.setdefault("isolation", "namespaces")
        made.append(Cluster(num_hosts, link, **settings))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
