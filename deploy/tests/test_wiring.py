"""What one manifest says of another is so: labels, ports, names. Schemas see none of it."""

from deploy.tests.manifests import Manifests, containers, probes, selects, values


def test_every_selector_finds_the_pods(built: Manifests) -> None:
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert selects(built.the(kind)["spec"]["selector"], built.labels), kind
    assert selects(built.the("NetworkPolicy")["spec"]["podSelector"], built.labels)
    assert selects({"matchLabels": built.the("Service")["spec"]["selector"]}, built.labels)
    spread = built.pod["topologySpreadConstraints"]
    assert {one["topologyKey"] for one in spread} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    assert all(selects(one["labelSelector"], built.labels) for one in spread)


def test_the_port_is_the_same_from_the_service_to_the_setting(built: Manifests) -> None:
    (port,) = built.container["ports"]
    assert str(port["containerPort"]) == built.settings["HEADWATER_PORT"]
    assert built.settings["HEADWATER_HOST"] in ("0.0.0.0", "::"), "127.0.0.1 would be heard by nobody"
    (of_service,) = built.the("Service")["spec"]["ports"]
    assert of_service["targetPort"] == port["name"]
    assert of_service["protocol"] == port["protocol"]
    assert {probe["httpGet"]["port"] for probe in probes(built.container).values()} == {port["name"]}
    for monitor in built.of("ServiceMonitor"):
        service = built.the("Service")
        assert selects(monitor["spec"]["selector"], service["metadata"]["labels"])
        assert [one["port"] for one in monitor["spec"]["endpoints"]] == [of_service["name"]]


def test_what_scales_scales_this_deployment(built: Manifests) -> None:
    name = built.the("Deployment")["metadata"]["name"]
    for autoscaler in built.of("HorizontalPodAutoscaler"):
        assert autoscaler["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    for scaled in built.of("ScaledObject"):
        assert scaled["spec"]["scaleTargetRef"]["name"] == name
    assert "replicas" not in built.the("Deployment")["spec"], "each apply would undo what the autoscaler did"


def test_what_the_pod_refers_to_is_there(built: Manifests) -> None:
    there = {(one["kind"], one["metadata"]["name"]) for one in built.all}
    assert ("ServiceAccount", built.pod["serviceAccountName"]) in there
    for name in values(built.pod, "claimName"):
        assert ("PersistentVolumeClaim", name) in there
    for reference in values(built.pod, "configMapRef"):
        assert ("ConfigMap", reference["name"]) in there
    # this one is made by whoever deploys, and stands in no file
    assert set(values(built.pod, "secretName")) <= {"headwater-api-keys"}


def test_every_mount_has_its_volume_and_every_volume_a_mount(built: Manifests) -> None:
    volumes = [volume["name"] for volume in built.pod["volumes"]]
    mounted = {mount["name"] for one in containers(built.pod) for mount in one["volumeMounts"]}
    assert sorted(volumes) == sorted(mounted)
    for one in containers(built.pod):
        paths = [mount["mountPath"] for mount in one["volumeMounts"]]
        assert len(set(paths)) == len(paths)


def test_prometheus_has_the_key_where_callers_need_one(built: Manifests) -> None:
    for monitor in built.of("ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        if "HEADWATER_API_KEYS_FILE" in built.settings:
            (secret,) = set(values(built.pod, "secretName"))
            credentials = {"name": secret, "key": "metrics"}
            assert endpoint["authorization"] == {"type": "Bearer", "credentials": credentials}
        else:
            assert "authorization" not in endpoint


def test_callers_of_the_port_and_prometheus_are_let_in_and_nothing_goes_out(built: Manifests) -> None:
    policy = built.the("NetworkPolicy")["spec"]
    (rule,) = policy["ingress"]
    (port,) = built.container["ports"]
    assert rule["ports"] == [{"port": port["name"], "protocol": port["protocol"]}]
    assert {"podSelector": {}} in rule["from"]
    assert {"namespaceSelector": {"matchLabels": {"headwater-client": "true"}}} in rule["from"]
    scrapers = [
        peer
        for peer in rule["from"]
        if peer.get("namespaceSelector", {}).get("matchLabels") == {"kubernetes.io/metadata.name": "monitoring"}
    ]
    assert len(scrapers) == len(built.of("ServiceMonitor"))
    assert len(rule["from"]) == 2 + len(scrapers)
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
