"""The models of conf/model, and the options that change a workload."""
