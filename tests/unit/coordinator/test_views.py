"""What is shown: no secrets, and no more work than is asked for."""

from strata.coordinator.views import dataset_view
from tests.unit.core.cluster import JOB, Cluster


def test_credentials_in_the_path_of_a_dataset_are_not_shown() -> None:
    cluster = Cluster()
    cluster.add_dataset(path="https://host/o?GoogleAccessId=svc@project.iam&Signature=secret")
    job = cluster.machine.state.jobs[JOB]
    assert dataset_view(job, job.datasets["images"]).path == "https://***"
