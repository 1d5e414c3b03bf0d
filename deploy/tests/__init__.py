"""What `make deploy-test` checks: deploy/kubernetes as kustomize builds it, by schemas, a linter and against the code."""
