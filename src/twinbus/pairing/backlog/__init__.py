"""The backlog: choosing, provisioning and watching the backlog queues in the secondary."""
