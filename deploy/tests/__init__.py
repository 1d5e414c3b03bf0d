"""`make deploy-test`: what kustomize builds of deploy/kubernetes, by schemas, a linter and against the code."""
